"""Operations that the command line and the admin page share."""
