//! Volumes in no store that failed before the program is replaced.

use weir_node::config::FileConfig;

use super::closing::{remotes, serve_hanging};
use super::*;

/// The options of a process that serves a file as `disk`.
fn with_file(place: &Place, path: &Path) -> ServiceOptions {
    let mut options = place.options(VolumeOptions::default());
    let endpoint = EndpointKind::File(FileConfig { path: path.to_owned(), direct: false });
    let template = (*options.template).clone();
    options.volumes =
        VolumeSet::Listed(vec![VolumeSpec { name: name("disk"), endpoint, ..template }]);
    options
}

/// Ends a process for the next one; what it leaves.
pub(super) async fn replaced(service: Service) -> Vec<HandedOver> {
    let mut left = service.handed_over();
    left.append(&mut service.hand_over(false).await.failed);
    left
}

/// Why the process has failed with a volume that it does not serve.
async fn failed(place: &Place, volume: &str) -> String {
    let status = place.status().await;
    assert_eq!(status.health, Health::Failed, "{:?}", status.reasons);
    let one = status.not_served.into_iter().find(|one| one.name == volume);
    one.expect("it is not served").reason
}

/// A file of [`SIZE`] bytes whose volume has failed: it became shorter, and is as long as before.
async fn serve_failed(place: &Place, file: &Path) -> Service {
    let image = std::fs::File::create(file).expect("created");
    image.set_len(SIZE).expect("as long");
    let service = place.node.serve(with_file(place, file)).await.expect("it opens");
    image.set_len(0).expect("shorter");
    place.client("disk").send((0, 0, 4096), &[]);
    let patience = Instant::now() + Duration::from_secs(20);
    while place.status().await.health != Health::Failed {
        assert!(Instant::now() < patience, "it has not failed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    image.set_len(SIZE).expect("as long as before");
    service
}

/// Nobody but the process that saw it fail knows of it: the kernel says so once, and the next flush would succeed.
#[test]
fn a_file_that_failed_is_not_served_by_the_next_process_before_somebody_says_so() {
    let place = Place::new();
    let (file, other) = (place.directory.path().join("disk"), place.directory.path().join("other"));
    run(async {
        let service = serve_failed(&place, &file).await;
        let mut options = with_file(&place, &file);
        options.left = replaced(service).await;
        let service = place.node.serve(options).await.expect("it goes on");
        let why = failed(&place, "disk").await;
        assert!(why.contains("shorter than the volume"), "{why}");
        // Settings that say the same decide nothing, and neither does the next replacement.
        let reloaded = place.reload(&service, with_file(&place, &file).volumes).await;
        assert_eq!(reloaded.expect("loaded").failed[0].0, name("disk"));
        // Nor does another way to write the path, or another name for the volume.
        for dotted in ["./disk", "data/../disk"] {
            let dotted = place.directory.path().join(dotted);
            let reloaded = place.reload(&service, with_file(&place, &dotted).volumes).await;
            assert_eq!(reloaded.expect("loaded").failed[0].0, name("disk"));
        }
        let mut renamed = with_file(&place, &file).volumes;
        let VolumeSet::Listed(specs) = &mut renamed else { panic!("one is listed") };
        specs[0].name = name("other");
        let reloaded = place.reload(&service, renamed).await;
        assert_eq!(reloaded.expect("loaded").failed[0].0, name("other"));
        let mut options = with_file(&place, &file);
        options.left = replaced(service).await;
        let service = place.node.serve(options).await.expect("it goes on");
        assert_eq!(failed(&place, "disk").await, why);
        place.call("disk", DetachVolume::default()).await;
        assert_eq!(place.status().await.health, Health::Ok);
        place.call("disk", AttachVolume::default()).await;
        place.client("disk").ask((1, 0, 4096), &[7; 4096]);
        assert_eq!(place.status().await.health, Health::Ok);
        let left = replaced(service).await;
        assert!(left.iter().all(|one| !matches!(one.was, Was::Failed { .. })), "{left:?}");

        // Its bytes are elsewhere by now.
        let service = serve_failed(&place, &file).await;
        std::fs::copy(&file, &other).expect("copied");
        let mut options = with_file(&place, &other);
        options.left = replaced(service).await;
        let service = place.node.serve(options).await.expect("it opens");
        assert_eq!(
            (served(&service), place.status().await.health),
            (vec!["disk".into()], Health::Ok)
        );
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// What the end of a process loses is told by the next one, which clients come back to.
#[test]
fn what_a_replacement_could_not_write_makes_the_next_process_fail() {
    let (server, place) = (Place::new(), Place::new());
    run(async {
        let serving = server.serve().await;
        let (service, passing) = serve_hanging(&place, &server, &["far"]).await;
        let left = replaced(service).await;
        passing.hang(false);
        let mut options = place.options(VolumeOptions::default());
        options.volumes = remotes(&place, &["far"], &place.directory.path().join("passage"));
        options.left = left;
        let service = place.node.serve(options).await.expect("it goes on");
        let why = failed(&place, "far").await;
        assert!(why.contains("4096 bytes that it acknowledged are lost"), "{why}");
        place.call("far", AttachVolume::default()).await;
        assert_eq!(place.status().await.health, Health::Ok);
        service.stop(Closing::ToStore).await.expect("closed");
        serving.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    server.node.shut_down();
}
