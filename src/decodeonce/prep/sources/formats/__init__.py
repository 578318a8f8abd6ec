"""What pictures come in, file by file: archives, lists, tables, annotations; sources put them together."""
