"""What the services measure of themselves: the instruments, the watch over leaks, and reading them back."""
