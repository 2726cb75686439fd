"""The commands: functions of option groups that call the library, by subject."""
