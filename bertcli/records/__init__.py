"""What is read: records, where they come from, and how files become records.

`records` has `Record`, `Source` (what the user named) and `Reader`; `formats` turns the lines and
rows of files into records, `windows` groups them. Imports `errors` and `files`. Begin with
`records`.
"""
