"""The `lerope` command: one module a command, each loaded only when it is called."""
