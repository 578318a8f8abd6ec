"""Turn the encoded bytes of an image into the bytes of its row, within bounded memory."""
