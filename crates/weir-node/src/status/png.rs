//! Images of a few colours as PNG, without compression: they are small, and nobody keeps them.

const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];

/// Longest stored block of deflate.
const STORED_MAX: usize = 65_535;

/// The CRC-32 of PNG, which is not that of the formats of this crate's own.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0xedb8_8320 }
        })
    })
}

fn adler(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    b << 16 | a
}

fn chunk(image: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    let begin = image.len() + 4;
    image.extend(u32::try_from(data.len()).expect("images are small").to_be_bytes());
    image.extend(kind);
    image.extend(data);
    let crc = crc(&image[begin..]);
    image.extend(crc.to_be_bytes());
}

/// Bytes as zlib has them where nothing is compressed.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut stored = vec![0x78, 0x01];
    let mut rest = bytes;
    loop {
        let (block, behind) = rest.split_at(rest.len().min(STORED_MAX));
        let len = u16::try_from(block.len()).expect("it is bounded");
        stored.push(behind.is_empty().into());
        stored.extend(len.to_le_bytes());
        stored.extend((!len).to_le_bytes());
        stored.extend(block);
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    stored.extend(adler(bytes).to_be_bytes());
    stored
}

/// An image of so many pixels in a row, each of which is the number of a colour, red, green and blue. Neither is empty.
pub(super) fn encode(width: u32, pixels: &[u8], colours: &[[u8; 3]]) -> Vec<u8> {
    let rows = pixels.chunks(width as usize);
    let height = u32::try_from(rows.len()).expect("images are small");
    let mut head = Vec::from(width.to_be_bytes());
    head.extend(height.to_be_bytes());
    // Eight bits a pixel, by palette; the one way to compress, to filter, and not interlaced.
    head.extend([8, 3, 0, 0, 0]);
    // Each row says how it is filtered: not at all.
    let lines: Vec<u8> = rows.flat_map(|row| [&[0][..], row].concat()).collect();
    let mut image = Vec::from(SIGNATURE);
    chunk(&mut image, *b"IHDR", &head);
    chunk(&mut image, *b"PLTE", colours.as_flattened());
    chunk(&mut image, *b"IDAT", &stored(&lines));
    chunk(&mut image, *b"IEND", &[]);
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As other programs read it: the bytes were compared with those of Python's zlib, and the image was looked at.
    #[test]
    fn an_image_is_as_others_read_it() {
        assert_eq!((crc(b"123456789"), adler(b"Wikipedia")), (0xcbf4_3926, 0x11e6_0398));
        let image = encode(2, &[0, 1, 1, 0], &[[0, 0, 0], [255, 128, 0]]);
        assert_eq!(image[..8], SIGNATURE);
        assert_eq!(
            image[8..33],
            *b"\0\0\0\rIHDR\0\0\0\x02\0\0\0\x02\x08\x03\0\0\0\x45\x68\xfd\x16"
        );
        let ended = image.len() - 12;
        assert_eq!(image[ended..], *b"\0\0\0\0IEND\xae\x42\x60\x82");
        // More than a stored block holds.
        let large = stored(&vec![7; 70_000]);
        assert_eq!((large[2], large.len()), (0, 2 + 2 * 5 + 70_000 + 4));
        assert_eq!(large[2 + 5 + 65_535], 1, "the second block is the last");
    }
}
