"""What a trained run has learned, band by band."""
