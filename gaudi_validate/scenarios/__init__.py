"""The trigger matrix: inputs as frozen data (:mod:`data`), tensors made late and seeded (:mod:`inputs`)."""
