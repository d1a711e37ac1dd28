//! What holds for the workspace as a whole.

mod dependencies;
