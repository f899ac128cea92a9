"""Parts of the launch line reader: words, flag table, values, one file per foreign form. `launch_line` is the door."""
