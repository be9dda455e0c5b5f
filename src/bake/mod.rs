//! bake
