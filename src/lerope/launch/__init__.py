"""Many runs: searches for a learning rate, and studies."""
