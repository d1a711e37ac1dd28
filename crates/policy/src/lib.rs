//! Core allocation: what is decided, never how it is carried out
