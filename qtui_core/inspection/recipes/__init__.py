"""Files that make quantization tools apply an assignment of schemes to tensors."""
