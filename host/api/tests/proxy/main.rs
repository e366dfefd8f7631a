//! Each proxy against the XML: a peer that is made from the XML alone answers
//! the proxies' calls. It takes only the members and argument types that the
//! XML has and answers with values of the XML's types, so a proxy that differs
//! fails; and what the proxies called must be all that the XML has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::collections::HashMap;

use futures_util::StreamExt;
use vgpu_host_api::proxy::{
    GpuProxy, Heterogeneous1Proxy, JobProxy, ManagerProxy, Mig1Proxy, NvidiaVgpu1Proxy, VgpuProxy,
};
use zbus::proxy::CacheProperties;

use peer::{Peer, connect};

/// Makes a proxy of that type to the peer, without a cache.
macro_rules! proxy {
    ($type:ident, $client:expr) => {
        $type::builder(&$client)
            .destination("org.vgpu.Host1")
            .path("/org/vgpu/Host1/any")
            .cache_properties(CacheProperties::No)
            .build()
            .await
            .unwrap()
    };
}

#[tokio::test]
async fn the_manager_proxy_is_the_xml() {
    let (peer, client) = connect(include_str!("../../interfaces/org.vgpu.Host1.Manager.xml")).await;
    let manager = proxy!(ManagerProxy, client);
    let none = HashMap::new();
    manager.create_vgpu("x", &none).await.unwrap();
    manager.get_gpu("x").await.unwrap();
    manager.get_vgpu("x").await.unwrap();
    manager.get_vgpu_by_pid(1).await.unwrap();
    assert_eq!(manager.list_gpus().await.unwrap().len(), 1);
    assert_eq!(manager.list_profiles(&none).await.unwrap().len(), 1);
    assert_eq!(manager.list_vgpus(&none).await.unwrap().len(), 1);
    let (choices, remaining) = manager.plan_vgpus(&[("x", 1)], &none).await.unwrap();
    assert_eq!((choices.len(), remaining.len()), (1, 1));
    manager.rescan().await.unwrap();
    manager.version().await.unwrap();
    manager.simulated().await.unwrap();
    manager.frameworks().await.unwrap();

    let mut new = manager.receive_job_new().await.unwrap();
    let mut removed = manager.receive_job_removed().await.unwrap();
    peer.emit_signals("/org/vgpu/Host1/any").await;
    new.next().await.unwrap().args().unwrap();
    removed.next().await.unwrap().args().unwrap();
    peer.assert_all_was_used(&["JobNew", "JobRemoved"]);
}

#[tokio::test]
async fn the_gpu_proxy_is_the_xml() {
    let (peer, client) = connect(include_str!("../../interfaces/org.vgpu.Host1.Gpu.xml")).await;
    let gpu = proxy!(GpuProxy, client);
    gpu.explain("x").await.unwrap();
    gpu.set_vf_count(1, &HashMap::new()).await.unwrap();
    gpu.configure(&HashMap::new()).await.unwrap();
    assert_eq!(gpu.plan_configuration(&HashMap::new()).await.unwrap(), ["text"]);
    gpu.address().await.unwrap();
    gpu.vendor().await.unwrap();
    gpu.model().await.unwrap();
    gpu.driver().await.unwrap();
    gpu.numa_node().await.unwrap();
    gpu.framework().await.unwrap();
    gpu.state().await.unwrap();
    gpu.vf_total().await.unwrap();
    gpu.vf_count().await.unwrap();
    assert_eq!(gpu.profiles().await.unwrap().len(), 1);
    assert_eq!(gpu.capacity().await.unwrap().len(), 1);
    assert_eq!(gpu.problems().await.unwrap().len(), 1);
    assert_eq!(gpu.functions().await.unwrap().len(), 1);
    peer.assert_all_was_used(&[]);
}

#[tokio::test]
async fn the_proxies_of_a_gpus_modes_are_the_xml() {
    let (peer, client) = connect(include_str!("../../interfaces/org.vgpu.Host1.Mig1.xml")).await;
    let mig = proxy!(Mig1Proxy, client);
    mig.current().await.unwrap();
    mig.pending().await.unwrap();
    assert_eq!(mig.instances().await.unwrap(), [(1, "text".to_owned())]);
    peer.assert_all_was_used(&[]);

    let xml = include_str!("../../interfaces/org.vgpu.Host1.Heterogeneous1.xml");
    let (peer, client) = connect(xml).await;
    proxy!(Heterogeneous1Proxy, client).enabled().await.unwrap();
    peer.assert_all_was_used(&[]);
}

#[tokio::test]
async fn the_vgpu_proxy_is_the_xml() {
    let (peer, client) = connect(include_str!("../../interfaces/org.vgpu.Host1.Vgpu.xml")).await;
    let vgpu = proxy!(VgpuProxy, client);
    vgpu.remove(&HashMap::new()).await.unwrap();
    vgpu.probe().await.unwrap();
    assert_eq!(vgpu.open_device(&HashMap::new()).await.unwrap().0.len(), 1);
    assert_eq!(vgpu.get_holders().await.unwrap().len(), 1);
    vgpu.uuid().await.unwrap();
    vgpu.name().await.unwrap();
    vgpu.gpu().await.unwrap();
    vgpu.profile().await.unwrap();
    vgpu.framework().await.unwrap();
    vgpu.state().await.unwrap();
    assert_eq!(vgpu.address().await.unwrap().len(), 1);
    vgpu.iommu_group().await.unwrap();
    assert_eq!(vgpu.nodes().await.unwrap().len(), 1);
    vgpu.owner_uid().await.unwrap();
    vgpu.managed().await.unwrap();
    vgpu.in_use().await.unwrap();
    peer.assert_all_was_used(&[]);
}

#[tokio::test]
async fn the_nvidia_vgpu_proxy_is_the_xml() {
    let xml = include_str!("../../interfaces/org.vgpu.Host1.NvidiaVgpu1.xml");
    let (peer, client) = connect(xml).await;
    let vgpu = proxy!(NvidiaVgpu1Proxy, client);
    vgpu.set_params("x").await.unwrap();
    vgpu.gpu_instance().await.unwrap();
    vgpu.placement().await.unwrap();
    vgpu.params().await.unwrap();
    peer.assert_all_was_used(&[]);
}

#[tokio::test]
async fn the_job_proxy_is_the_xml() {
    let (peer, client) = connect(include_str!("../../interfaces/org.vgpu.Host1.Job.xml")).await;
    let job = proxy!(JobProxy, client);
    job.cancel().await.unwrap();
    job.operation().await.unwrap();
    job.progress().await.unwrap();
    peer.assert_all_was_used(&[]);
}

#[tokio::test]
async fn the_peer_refuses_what_the_xml_does_not_have() {
    let xml = include_str!("../../interfaces/org.vgpu.Host1.Job.xml");
    let changed =
        xml.replace("name=\"Cancel\"", "name=\"Stop\"").replace("type=\"d\"", "type=\"u\"");
    let (_peer, client): (Peer, _) = connect(&changed).await;
    let job = proxy!(JobProxy, client);
    assert!(job.cancel().await.is_err(), "a member that is not there was taken");
    assert!(job.progress().await.is_err(), "a value of another type was taken");
    assert!(job.operation().await.is_ok());
}
