//! mlpackage
