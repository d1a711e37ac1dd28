//! The published figures in their short form.

mod validation;
