//! Names of call sites: the file and the line behind an address that identifies a site.
//!
//! The address is any number that the program chose. Therefore its memory is read by a system call,
//! which fails where nothing is mapped.

use std::mem::size_of;
use std::panic::Location;

use once_cell::race::OnceBox;

/// Maximum length of a file's name, in bytes.
const NAME_BYTES_MAX: usize = 4096;
/// No read crosses a border of this many bytes, so each one is of one page.
const PIECE_BYTES: usize = 256;

/// Kind of a program's call sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SiteNames {
    /// The address of a [`Location`].
    #[default]
    Location,
    /// The address of a structure that begins with the pointer to the name of a file, which ends
    /// with a zero, and the line in 32 bits.
    CallSite,
}

impl SiteNames {
    /// The file and the line of a site; `None` if its address is not that of such a site.
    pub(super) fn resolve(self, address: usize) -> Option<(String, u32)> {
        match self {
            _ if address == 0 => None,
            SiteNames::Location => location(address),
            SiteNames::CallSite => call_site(address),
        }
    }
}

fn call_site(address: usize) -> Option<(String, u32)> {
    const WORD: usize = size_of::<usize>();
    let mut bytes = [0; WORD + 4];
    read_own(address, &mut bytes)?;
    let file = usize::from_ne_bytes(bytes[..WORD].try_into().ok()?);
    let line = u32::from_ne_bytes(bytes[WORD..].try_into().ok()?);
    let mut name = Vec::new();
    while name.len() < NAME_BYTES_MAX {
        let at = file.checked_add(name.len()).filter(|_| file != 0)?;
        let mut piece = [0; PIECE_BYTES];
        let piece = &mut piece[..PIECE_BYTES - at % PIECE_BYTES];
        read_own(at, piece)?;
        let end = piece.iter().position(|byte| *byte == 0);
        name.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
        if end.is_some() {
            return text(name).map(|name| (name, line));
        }
    }
    None
}

fn text(name: Vec<u8>) -> Option<String> {
    String::from_utf8(name).ok().filter(|name| !name.is_empty())
}

/// Places of the fields of a [`Location`], which the language does not promise.
#[derive(Clone, Copy, Debug)]
struct LocationLayout {
    file: usize,
    length: usize,
    /// Difference between the stored length and that of the name.
    excess: usize,
    line: usize,
}

const LOCATION_BYTES: usize = size_of::<Location<'static>>();

/// Finds the layout by a known location; `None` if it is of an unknown kind.
fn layout() -> Option<LocationLayout> {
    static LAYOUT: OnceBox<Option<LocationLayout>> = OnceBox::new();
    *LAYOUT.get_or_init(|| Box::new(layout_of(Location::caller())))
}

fn layout_of(known: &'static Location<'static>) -> Option<LocationLayout> {
    const WORD: usize = size_of::<usize>();
    let mut bytes = [0; LOCATION_BYTES];
    read_own(std::ptr::from_ref(known).addr(), &mut bytes)?;
    let word =
        |at: usize| usize::from_ne_bytes(bytes[at..at + WORD].try_into().unwrap_or_default());
    let mut places = (0..=LOCATION_BYTES.checked_sub(WORD)?).step_by(WORD);
    let file = places.clone().find(|at| word(*at) == known.file().as_ptr().addr())?;
    let excess = |at: usize| word(at).checked_sub(known.file().len()).filter(|excess| *excess <= 1);
    let length = places.find(|at| *at != file && excess(*at).is_some())?;
    let half = |at: &usize| {
        let is_free = [file, length].iter().all(|word| !(*word..word + WORD).contains(at));
        is_free && bytes[*at..*at + 4] == known.line().to_ne_bytes()
    };
    let mut lines = (0..LOCATION_BYTES).step_by(4).filter(half);
    let line = lines.next().filter(|_| lines.next().is_none())?;
    Some(LocationLayout { file, length, excess: excess(length)?, line })
}

fn location(address: usize) -> Option<(String, u32)> {
    let layout = layout()?;
    let mut bytes = [0; LOCATION_BYTES];
    read_own(address, &mut bytes)?;
    let word = |at: usize| bytes[at..].first_chunk().map(|word| usize::from_ne_bytes(*word));
    let length = word(layout.length)?.checked_sub(layout.excess)?;
    let line = u32::from_ne_bytes(*bytes[layout.line..].first_chunk()?);
    let mut name = vec![0; Some(length).filter(|length| *length <= NAME_BYTES_MAX)?];
    read_own(word(layout.file)?, &mut name)?;
    text(name).map(|name| (name, line))
}

/// Reads memory of this process at any address; `None` if some of it is not readable.
fn read_own(address: usize, to: &mut [u8]) -> Option<()> {
    let own = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let other = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: to.len() };
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the kernel writes at most `to.len()` bytes into `to`, which is borrowed exclusively.
    // It checks the other address, and the race with a thread that writes there is the kernel's:
    // nothing here refers to that memory.
    let read = unsafe { libc::process_vm_readv(pid, &raw const own, 1, &raw const other, 1, 0) };
    (usize::try_from(read) == Ok(to.len())).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_char;

    #[test]
    fn a_location_has_its_file_and_line() {
        let here = Location::caller();
        let found = SiteNames::Location.resolve(std::ptr::from_ref(here).addr());
        assert_eq!(found, Some((here.file().to_owned(), here.line())));
        let other: &'static Location<'static> = std::hint::black_box(Location::caller());
        let found = SiteNames::Location.resolve(std::ptr::from_ref(other).addr());
        assert_eq!(found, Some((other.file().to_owned(), other.line())));
        assert_ne!(here.line(), other.line());
    }

    #[repr(C)]
    struct CSite {
        file: *const c_char,
        line: u32,
    }

    #[test]
    fn a_structure_of_c_has_its_file_and_line() {
        let resolve = |file: *const c_char| {
            let site = CSite { file, line: 71 };
            SiteNames::CallSite.resolve((&raw const site).addr())
        };
        assert_eq!(resolve(c"src/main.c".as_ptr()), Some(("src/main.c".to_owned(), 71)));
        let long = std::ffi::CString::new("x".repeat(1000)).unwrap();
        assert_eq!(resolve(long.as_ptr()), Some(("x".repeat(1000), 71)));
        let endless = std::ffi::CString::new("x".repeat(2 * NAME_BYTES_MAX)).unwrap();
        for nothing in [std::ptr::null(), std::ptr::dangling(), c"".as_ptr(), endless.as_ptr()] {
            assert_eq!(resolve(nothing), None);
        }
    }

    #[test]
    fn any_other_number_has_no_name() {
        let bytes = [0xff_u8; 64];
        for number in [0, 1, 0x1000, usize::MAX, 1 << 46, bytes.as_ptr().addr()] {
            for names in [SiteNames::Location, SiteNames::CallSite] {
                assert_eq!(names.resolve(number), None, "{number:#x}");
            }
        }
    }
}
