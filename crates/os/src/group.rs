//! The host's groups, by whatever source the host is configured for (files, LDAP).

use std::ffi::CString;
use std::io;
use std::ptr;

/// The largest group entry that is read: a group with thousands of members fits.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// The number of the group with this name; `None` where there is no such group.
///
/// # Errors
/// When the host's databases cannot be read.
pub fn id(name: &str) -> io::Result<Option<u32>> {
    // A name with a zero byte names nothing.
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut bytes = vec![0; 4096];
    loop {
        // SAFETY: all zero is a valid `group`, a struct of numbers and pointers.
        let mut entry: libc::group = unsafe { std::mem::zeroed() };
        let mut found = ptr::null_mut();
        // SAFETY: `name` ends with a zero byte, and the other pointers are to locals that outlive the call;
        // the length is that of the buffer.
        let status = unsafe {
            libc::getgrnam_r(name.as_ptr(), &mut entry, bytes.as_mut_ptr(), bytes.len(), &mut found)
        };
        match status {
            0 => return Ok((!found.is_null()).then_some(entry.gr_gid)),
            libc::ERANGE if bytes.len() < ENTRY_BYTES_MAX => bytes.resize(bytes.len() * 4, 0),
            // Databases answer so for a name that they do not know (getgrnam(3), ERRORS).
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::id;

    #[test]
    fn groups_are_found_by_name() {
        assert_eq!(id("root").unwrap(), Some(0));
        assert_eq!(id("no-such-group-here").unwrap(), None);
        assert_eq!(id("ro\0ot").unwrap(), None);
    }
}
