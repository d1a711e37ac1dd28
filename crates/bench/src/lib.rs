//! Every benchmark behind quell bench
