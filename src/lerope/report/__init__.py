"""Tables, figures and the page, drawn from result files alone. No torch."""
