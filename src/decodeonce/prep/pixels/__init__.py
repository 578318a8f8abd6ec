"""From a picture's encoded bytes to the bytes of its row, within bounded memory."""
