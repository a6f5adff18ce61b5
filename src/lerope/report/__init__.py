"""Tables, figures and the page, drawn only from result files. No torch."""
