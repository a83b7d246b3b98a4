"""What operators see and change, whatever they look through: the command line and the admin page."""
