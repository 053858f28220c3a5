//! `weir volume import`, `export` and `copy`: a volume from an image, into one, and from another volume.
//!
//! `qemu-img` does the copying, between the image and the export of the volume; see docs/decisions/0008.

mod copier;
mod export;
mod fill;
mod image;
mod nbd;
mod place;
mod qemu;
mod stream;

use std::path::Path;

use weir_log::catalog::VolumeName;
use weir_node::api::types::Shown;
use weir_node::size::human;
use weir_node::{Home, Node};

pub(crate) use self::export::Exported;
use self::export::Wanted;
use self::fill::{Source, Wishes};
use self::image::Image;
use self::place::{VolumeAt, reach_to_read};
use crate::cli::volume::VolumePlace;
use crate::process::signals::Signals;
use crate::settings::Transfer;
use crate::terminal::failure::Failure;
use crate::terminal::output::say_of_work;

/// What stands for standard input and output elsewhere. A file of this name is `./-`.
pub(crate) const STREAM: &str = "-";

/// An export as a drive of QEMU, which reaches it again when the process that serves it was replaced.
pub(crate) fn qemu_drive(uri: &str) -> Result<String, Failure> {
    qemu::drive(uri)
}

/// `weir volume import`.
pub(crate) async fn import(
    node: &Node,
    setup: &Transfer,
    (source, format): (&Path, Option<&str>),
    (name, size, overwrite): (VolumeName, Option<u64>, bool),
) -> Result<Shown, Failure> {
    let mut signals = Signals::listen()?;
    let target = VolumeAt { home: setup.home.clone(), name, snapshot: None };
    if source == Path::new(STREAM) {
        stream::check_format(format, "read from standard input")?;
        let Some(size) = size else {
            return Err(Failure::usage("the size of a stream is not known before it has ended")
                .with_help("give the size of the image with --size"));
        };
        let wishes = Wishes { overwrite, size: Some(size) };
        return fill::run(node, setup, (&Source::Input(size), &target), wishes, &mut signals).await;
    }
    let image = Image::open(source, format).await?;
    let (format, size_text) = (&image.format, human(image.size));
    say_of_work!("{}: {format}, {size_text}", source.display());
    let wishes = Wishes { overwrite, size };
    fill::run(node, setup, (&Source::Image(&image), &target), wishes, &mut signals).await
}

/// `weir volume export`.
pub(crate) async fn export(
    node: &Node,
    setup: &Transfer,
    from: VolumePlace,
    (path, format, overwrite): (&Path, Option<String>, bool),
) -> Result<Exported, Failure> {
    let mut signals = Signals::listen()?;
    if path == Path::new(STREAM) {
        stream::check_output(format.as_deref())?;
        let place = reach_to_read(node, setup, &at(setup, from), &mut signals).await?;
        let size_bytes = place.size;
        let written = tokio::select! {
            biased;
            number = signals.next() => Err(copier::interrupted(number)),
            written = stream::write_out(&place.uri, size_bytes) => written,
        };
        let written =
            written.map_err(|failure| place.with_way_to_read(failure.clone()).unwrap_or(failure));
        let ended = place.end(&mut signals).await;
        written?;
        ended?;
        let (path, format) = (STREAM.to_owned(), "raw".to_owned());
        return Ok(Exported { path, format, size_bytes, file_bytes: size_bytes });
    }
    let wanted = Wanted::new(path, format, overwrite)?;
    let source = at(setup, from);
    export::run(node, setup, &source, &wanted, &mut signals).await
}

/// `weir volume copy`.
pub(crate) async fn copy(
    node: &Node,
    setup: &Transfer,
    (from, to): (VolumePlace, VolumePlace),
    overwrite: bool,
) -> Result<Shown, Failure> {
    let mut signals = Signals::listen()?;
    if let Some(snapshot) = &to.snapshot {
        return Err(Failure::usage(format!("a snapshot, {}@{snapshot}, takes no bytes", to.name)));
    }
    let (from, to) = (at(setup, from), at(setup, to));
    let source = reach_to_read(node, setup, &from, &mut signals).await?;
    let wishes = Wishes { overwrite, size: None };
    let ends = (&Source::Volume(&source), &to);
    let copied = if to.look(node).await?.is_some_and(|shown| shown.id == source.id.to_string()) {
        Err(Failure::usage(format!("{from} would be copied onto itself")))
    } else {
        fill::run(node, setup, ends, wishes, &mut signals).await
    };
    let ended = source.end(&mut signals).await;
    let copied = copied?;
    ended.map(|()| copied)
}

/// Where that is.
fn at(setup: &Transfer, place: VolumePlace) -> VolumeAt {
    let VolumePlace { store, name, snapshot } = place;
    let store_url = store.unwrap_or_else(|| setup.home.store_url.clone());
    VolumeAt { home: Home { store_url, ..setup.home.clone() }, name, snapshot }
}
