//! Numbers with a unit, on the command line.

/// The units of a quantity, and how many of the smallest one each has. An empty name is a number alone.
pub type Units = &'static [(&'static str, u64)];

pub const BYTES: Units = &[("", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
pub const MILLIS: Units = &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

/// A whole number and one of `units`, in the smallest of them.
///
/// # Errors
///
/// What is needed instead, for people.
pub fn parse(text: &str, units: Units) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
    let (Some(factor), false) = (factor, number.is_empty()) else {
        let alone = units.iter().any(|(name, _)| name.is_empty());
        let names: Vec<_> = units.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
        let alone = if alone { "alone or with" } else { "and a unit:" };
        return Err(format!("a number is needed, {alone} {}", names.join(", ")));
    };
    let number: Option<u64> = number.parse().ok();
    number.and_then(|number| number.checked_mul(*factor)).ok_or_else(|| "too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit() {
        assert_eq!(parse("4096", BYTES), Ok(4096));
        assert_eq!(parse("4KiB", BYTES), Ok(4096));
        assert_eq!(parse("10GiB", BYTES), Ok(10 << 30));
        assert_eq!(parse("250ms", MILLIS), Ok(250));
        assert_eq!(parse("10m", MILLIS), Ok(600_000));
        for wrong in ["", "KiB", "1KB", "-1", "1.5MiB", "1 MiB"] {
            let problem = parse(wrong, BYTES).unwrap_err();
            assert_eq!(problem, "a number is needed, alone or with KiB, MiB, GiB", "{wrong}");
        }
        for wrong in ["", "5", "s", "1d", "-1s", "1.5s"] {
            let problem = parse(wrong, MILLIS).unwrap_err();
            assert_eq!(problem, "a number is needed, and a unit: ms, s, m, h", "{wrong}");
        }
        for wrong in ["99999999999GiB", "99999999999999999999GiB"] {
            assert_eq!(parse(wrong, BYTES), Err("too large".to_owned()));
        }
    }
}
