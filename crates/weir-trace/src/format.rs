//! The formats, their names, and how one is told from the others.

use std::str::FromStr;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `time_us,R|W|D|F,device,offset,len`: what a volume with a trace writes, too. `D` is a discard, `F` a flush.
    Csv,
    /// MSR Cambridge: `filetime_100ns,host,disk,Read|Write,offset,size,response`.
    Msr,
    /// Alibaba: `device,R|W,offset,length,time_us`.
    Alibaba,
    /// Tencent CBS: `time_s,offset_512,size_512,0|1,volume`.
    Tencent,
    /// SYSTOR'17: `time_s,response,R|W,lun,offset,size`.
    Systor,
    /// SPC-1: `asu,lba_512,size,R|W,time_s`.
    Spc,
    /// The text of blkparse; its `Q` rows count.
    Blkparse,
    /// An iolog of fio, version 2 or 3.
    Fio,
    /// Reference strings of the ARC paper: `first_block block_count 0 sequence`, in blocks of 512 bytes; all read.
    Lis,
    /// `CloudPhysics` vscsi, version 1: binary records of 32 bytes.
    Vscsi1,
    /// `CloudPhysics` vscsi, version 2: binary records of 40 bytes.
    Vscsi2,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Csv,
        Self::Msr,
        Self::Alibaba,
        Self::Tencent,
        Self::Systor,
        Self::Spc,
        Self::Blkparse,
        Self::Fio,
        Self::Lis,
        Self::Vscsi1,
        Self::Vscsi2,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Msr => "msr",
            Self::Alibaba => "alibaba",
            Self::Tencent => "tencent",
            Self::Systor => "systor",
            Self::Spc => "spc",
            Self::Blkparse => "blkparse",
            Self::Fio => "fio",
            Self::Lis => "lis",
            Self::Vscsi1 => "vscsi1",
            Self::Vscsi2 => "vscsi2",
        }
    }

    /// The names of all of them.
    #[must_use]
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// What the first bytes of a trace look like. Alibaba's lines look like those of `csv`, and are never guessed.
    pub(crate) fn guess(head: &[u8]) -> Option<Self> {
        if head.contains(&0) {
            return crate::vscsi::guess(head);
        }
        let text = String::from_utf8_lossy(head);
        let lines = text.lines().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let first = lines.next()?;
        // A first line without a digit at its beginning is a heading.
        Self::of_line(first).or_else(|| lines.next().and_then(Self::of_line))
    }

    fn of_line(line: &str) -> Option<Self> {
        if line.starts_with("fio version") {
            return Some(Self::Fio);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let commas: Vec<&str> = line.split(',').map(str::trim).collect();
        let number = |text: &&str| text.parse::<f64>().is_ok();
        let letter = |text: &str| matches!(text, "R" | "W" | "r" | "w");
        let letter_of_ours = |text: &str| letter(text) || matches!(text, "D" | "F");
        match (&commas[..], &words[..]) {
            ([_, _, _, op, _, _, _], _) if op.eq_ignore_ascii_case("read") => Some(Self::Msr),
            ([_, _, _, op, _, _, _], _) if op.eq_ignore_ascii_case("write") => Some(Self::Msr),
            ([_, op, rest @ ..], _) if rest.len() == 3 && letter_of_ours(op) => Some(Self::Csv),
            ([_, _, op, rest @ ..], _) if rest.len() == 3 && letter(op) => Some(Self::Systor),
            ([_, _, _, op, _], _) if letter(op) => Some(Self::Spc),
            ([_, _, _, "0" | "1", _], _) if commas.iter().all(number) => Some(Self::Tencent),
            (_, [device, _, _, _, _, action, ..])
                if device.contains(',') && action.chars().all(char::is_alphabetic) =>
            {
                Some(Self::Blkparse)
            }
            (_, [_, _, _, _]) if words.iter().all(number) => Some(Self::Lis),
            _ => None,
        }
    }
}

impl FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|format| format.name() == text);
        named.ok_or_else(|| format!("{text:?} is none of {}", Self::names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_by_their_first_line() {
        let guess = |text: &str| Format::guess(text.as_bytes()).map(Format::name);
        for (line, name) in [
            ("5265313,W,0,3254857728,4096\n", "csv"),
            ("128166372003061629,usr,0,Read,7014609920,24576,41286\n", "msr"),
            ("1538323200,12910952,128,0,1063\n", "tencent"),
            ("Timestamp,Response,IOType,LUN,Offset,Size\n1.5,0.000123,W,0,4096,512\n", "systor"),
            ("0,20941264,8192,W,0.551706\n", "spc"),
            ("  8,0  1  1  0.000000000  697  Q  W 223490 + 8 [kjournald]\n", "blkparse"),
            ("fio version 2 iolog\n/dev/sda add\n", "fio"),
            ("230027 8 0 0\n", "lis"),
        ] {
            assert_eq!(guess(line), Some(name), "{line}");
        }
        assert_eq!(guess("hello world\nand more\n"), None);
        assert_eq!(guess(""), None);
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
    }
}
