//! What events mean to the viewer.

mod replay;
