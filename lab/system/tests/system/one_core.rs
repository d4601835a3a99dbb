//! Node on a machine with one core, simulated by the CPU affinity of its processes.

use std::process::Command;

use api::SessionRequest;
use testkit::{Service, root_or_skip, tam};

use crate::common::{Line, passing};

fn request(cpu: &str) -> SessionRequest {
    let (name, cpu) = ("gold".to_owned(), vec![cpu.to_owned()]);
    SessionRequest { name, cpu, ..SessionRequest::default() }
}

#[test]
fn with_one_core_a_node_admits_long_periods_only_and_forwards() {
    if !root_or_skip("a node on one core") {
        return;
    }
    // What a thread may use its children may, and other tests are on other threads.
    let tested = std::thread::spawn(|| {
        sandbox::cores::pin_to(sandbox::cores::first()).unwrap();
        assert_eq!(sandbox::cores::count(), 1);

        let doctor = Command::new(tam()).args(["doctor", "--json"]).output().unwrap();
        let says = String::from_utf8(doctor.stdout).unwrap();
        assert!(says.contains("promised anything in less than 100ms"), "{says}");

        let line = Line::up();
        let refused = line.node.client().create_session(&request("1ms/4ms")).unwrap_err();
        let says = refused.to_string();
        assert!(says.contains("one core") && says.contains("100ms"), "{says}");
        line.node.client().create_session(&request("30ms/100ms")).unwrap();
        let service = Service { session: "gold", rules: &["proto icmp"], ..Service::default() };
        line.node.deploy(&passing("monitor"), &service).unwrap();
        line.resolve_neighbours();

        let gold = line.node.client().session("gold").unwrap();
        assert_eq!(gold.promised.cpu, ["30ms/100ms"]);
        assert!(gold.used.total.packets >= 2, "{:?}", gold.used.total);
        assert!(gold.used.total.cpu_ns.is_some_and(|it| it > 0), "{:?}", gold.used.total);
        line.books();
    });
    if let Err(panic) = tested.join() {
        std::panic::resume_unwind(panic);
    }
}
