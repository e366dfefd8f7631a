//! The methods that we answer: the standard ones, and those of the XML. A test
//! holds the table against the XML.

use vgpu_host_api::names::{self, standard};

/// One method.
#[derive(Debug)]
pub(crate) struct Method {
    /// Its interface.
    pub(crate) interface: &'static str,
    /// Its name.
    pub(crate) member: &'static str,
    /// The types of its arguments.
    pub(crate) input: &'static str,
    /// The types of its results.
    pub(crate) output: &'static str,
    /// What answers it.
    pub(crate) handler: Handler,
}

/// What answers a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handler {
    Ping,
    GetMachineId,
    Introspect,
    Get,
    GetAll,
    Set,
    GetManagedObjects,
    CreateVgpu,
    GetGpu,
    GetVgpu,
    GetVgpuByPid,
    ListGpus,
    ListProfiles,
    ListVgpus,
    PlanVgpus,
    Rescan,
    Explain,
    SetVfCount,
    Configure,
    PlanConfiguration,
    Remove,
    Probe,
    OpenDevice,
    GetHolders,
    SetParams,
    Cancel,
}

const fn method(
    interface: &'static str,
    member: &'static str,
    input: &'static str,
    output: &'static str,
    handler: Handler,
) -> Method {
    Method { interface, member, input, output, handler }
}

/// All methods.
pub(crate) const METHODS: &[Method] = &[
    method(standard::PEER, "Ping", "", "", Handler::Ping),
    method(standard::PEER, "GetMachineId", "", "s", Handler::GetMachineId),
    method(standard::INTROSPECTABLE, "Introspect", "", "s", Handler::Introspect),
    method(standard::PROPERTIES, "Get", "ss", "v", Handler::Get),
    method(standard::PROPERTIES, "GetAll", "s", "a{sv}", Handler::GetAll),
    method(standard::PROPERTIES, "Set", "ssv", "", Handler::Set),
    method(
        standard::OBJECT_MANAGER,
        "GetManagedObjects",
        "",
        "a{oa{sa{sv}}}",
        Handler::GetManagedObjects,
    ),
    method(names::MANAGER, "CreateVgpu", "sa{sv}", "obo", Handler::CreateVgpu),
    method(names::MANAGER, "GetGpu", "s", "o", Handler::GetGpu),
    method(names::MANAGER, "GetVgpu", "s", "o", Handler::GetVgpu),
    method(names::MANAGER, "GetVgpuByPid", "u", "o", Handler::GetVgpuByPid),
    method(names::MANAGER, "ListGpus", "", "a(ssssssuuu)", Handler::ListGpus),
    method(names::MANAGER, "ListProfiles", "a{sv}", "a(ssssstuus)", Handler::ListProfiles),
    method(names::MANAGER, "ListVgpus", "a{sv}", "a(sssssuu)", Handler::ListVgpus),
    method(names::MANAGER, "PlanVgpus", "a(su)a{sv}", "a(sssas)a(ssuu)", Handler::PlanVgpus),
    method(names::MANAGER, "Rescan", "", "", Handler::Rescan),
    method(names::GPU, "Explain", "s", "s", Handler::Explain),
    method(names::GPU, "SetVfCount", "ua{sv}", "o", Handler::SetVfCount),
    method(names::GPU, "Configure", "a{sv}", "o", Handler::Configure),
    method(names::GPU, "PlanConfiguration", "a{sv}", "as", Handler::PlanConfiguration),
    method(names::VGPU, "Remove", "a{sv}", "o", Handler::Remove),
    method(names::VGPU, "Probe", "", "a{sv}", Handler::Probe),
    method(names::VGPU, "OpenDevice", "a{sv}", "a{sh}a{sv}", Handler::OpenDevice),
    method(names::VGPU, "GetHolders", "", "a(uss)", Handler::GetHolders),
    method(names::NVIDIA_VGPU, "SetParams", "s", "o", Handler::SetParams),
    method(names::JOB, "Cancel", "", "", Handler::Cancel),
];

/// A method by its names; without an interface, the first of that name among
/// the object's `interfaces`.
pub(crate) fn find(
    interfaces: &[&str],
    interface: Option<&str>,
    member: &str,
) -> Option<&'static Method> {
    METHODS.iter().find(|method| {
        method.member == member
            && match interface {
                Some(interface) => method.interface == interface,
                None => interfaces.contains(&method.interface),
            }
    })
}

#[cfg(test)]
#[path = "contract_tests.rs"]
mod tests;
