//! The topology of this host, from sysfs.
