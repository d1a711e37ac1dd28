//! The tick loop, tasks, control server and guardians
