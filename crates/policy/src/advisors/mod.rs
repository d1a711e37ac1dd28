//! Advisors: each watches one thing and suggests; the allocator decides.

mod fair_server;
mod kernel_sections;

pub use fair_server::FairServer;
pub use kernel_sections::KernelSections;
