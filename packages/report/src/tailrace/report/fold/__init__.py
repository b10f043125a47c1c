"""What an event log adds up to, instant by instant, with no I/O and no clock."""
