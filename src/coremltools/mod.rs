//! coremltools
