"""What is measured, and beside what: `engine` on this machine, `fleet` on a cluster."""
