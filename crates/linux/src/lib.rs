//! The only room that talks to the kernel: observe, act, doctor
