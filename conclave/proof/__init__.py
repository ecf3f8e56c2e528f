"""Shows that nothing that was erased can be decrypted, with all that lies here and in the copies."""
