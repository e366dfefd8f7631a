//! What others made, and what is ours.

use std::process::Command;

use futures_util::StreamExt as _;
use tokio::time::timeout;
use vgpu_host_api::{error, path, proxy::Options};
use zbus::fdo::ObjectManagerProxy;

use crate::service::{LIMIT, Service, error_name};

fn mdevctl(arguments: &[&str]) {
    let output = Command::new("mdevctl").args(arguments).output().unwrap();
    assert!(output.status.success(), "mdevctl {arguments:?}: {output:?}");
}

#[tokio::test]
async fn mdevctls_own_is_foreign() {
    let service = Service::start().await;
    let objects = ObjectManagerProxy::builder(&service.bus)
        .destination("org.vgpu.Host1")
        .path("/org/vgpu/Host1")
        .build()
        .await
        .unwrap();
    let mut added = objects.receive_interfaces_added().await.unwrap();
    let mut removed = objects.receive_interfaces_removed().await.unwrap();
    let uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1234";
    let foreign = path::vgpu(uuid);
    mdevctl(&["start", "-u", uuid, "-p", "mtty", "--type", "mtty-1"]);
    let appears = async {
        loop {
            let signal = added.next().await.unwrap();
            if *signal.args().unwrap().object_path() == foreign {
                return;
            }
        }
    };
    timeout(LIMIT, appears).await.expect("it is shown");
    let vgpu = service.vgpu(&foreign.clone().into()).await;
    assert!(!vgpu.managed().await.unwrap());
    assert_eq!(vgpu.owner_uid().await.unwrap(), 0);
    assert_eq!(error_name(vgpu.remove(&Options::new()).await), error::NOT_MANAGED);
    let force = Options::from([("force", true.into())]);
    assert_eq!(error_name(vgpu.remove(&force).await), error::NOT_MANAGED);
    assert_eq!(error_name(vgpu.probe().await), error::NOT_MANAGED);
    let same = Options::from([("uuid", uuid.into()), ("gpu", "mtty".into())]);
    let again = service.manager().await.create_vgpu("mtty-1", &same).await;
    assert_eq!(error_name(again), error::NOT_MANAGED);

    mdevctl(&["stop", "-u", uuid]);
    let goes = async {
        loop {
            let signal = removed.next().await.unwrap();
            if *signal.args().unwrap().object_path() == foreign {
                return;
            }
        }
    };
    timeout(LIMIT, goes).await.expect("it goes");
    service.stop().await;
}
