"""The scheduling layer: owns a request's story (queue, placement, hand-over, resume). Never sees text or tensors."""
