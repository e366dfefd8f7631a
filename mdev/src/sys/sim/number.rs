//! Numbers as the kernel parses them.

use nix::errno::Errno;

/// `kstrtoull(text, 0, …)` of lib/kstrtox.c: decimal, `0x…` or octal, with at
/// most one plus before and one newline after it.
pub(super) fn unsigned(text: &str) -> Result<u64, Errno> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_prefix('+').unwrap_or(text);
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = match (hex, text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(Errno::EINVAL);
    }
    u64::from_str_radix(digits, radix).map_err(|_| Errno::ERANGE)
}

/// `kstrtobool` of lib/kstrtox.c.
pub(super) fn boolean(text: &str) -> Result<bool, Errno> {
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some('y' | 'Y' | 't' | 'T' | '1'), _) | (Some('o' | 'O'), Some('n' | 'N')) => Ok(true),
        (Some('n' | 'N' | 'f' | 'F' | '0'), _) | (Some('o' | 'O'), Some('f' | 'F')) => Ok(false),
        _ => Err(Errno::EINVAL),
    }
}

/// `kstrtou8`, `kstrtou16` and `kstrtou32`.
pub(super) fn limited<T: TryFrom<u64>>(text: &str) -> Result<T, Errno> {
    T::try_from(unsigned(text)?).map_err(|_| Errno::ERANGE)
}
