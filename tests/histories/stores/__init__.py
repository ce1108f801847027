"""Store files that older schemas have left behind: never edited, opened and brought up to date for ever."""
