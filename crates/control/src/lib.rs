//! The configuration file and the versioned control protocol
