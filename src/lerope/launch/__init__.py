"""Many runs: learning-rate searches and studies."""
