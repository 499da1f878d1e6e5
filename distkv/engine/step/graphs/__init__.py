"""Steps captured as graphs: decodes whole, others in pieces between their attentions."""
