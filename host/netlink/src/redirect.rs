//! Redirection of all frames of one device to the ingress of another: a filter at its ingress
//! (cls_u32) whose action redirects every frame (act_mirred).

use rtnetlink::packet_core::{DefaultNla, NLA_F_NESTED, NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{
    TcAttribute, TcFilterU32Option, TcHandle, TcMessage, TcOption, TcU32Key, TcU32Selector,
    TcU32SelectorFlags,
};

use super::NetlinkError;
use super::attributes::Attributes;
use super::socket::Socket;

/// include/uapi/linux/pkt_cls.h and tc_act/tc_mirred.h.
const TCA_U32_ACT: u16 = 7;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TC_ACT_STOLEN: u32 = 4;
const TCA_INGRESS_REDIR: u32 = 3;
const ETH_P_ALL: u16 = libc::ETH_P_ALL as u16;

/// Redirects all frames that arrive by one device to the ingress of another.
pub(super) fn redirect(socket: &Socket, from: u32, to: u32) -> Result<(), NetlinkError> {
    let request = format!(
        "redirect what comes in by device number {from} to number {to} (sch_ingress, cls_u32, act_mirred)"
    );
    for message in [ingress(from), filter(from, to)] {
        socket.change(&request, &message, NLM_F_CREATE | NLM_F_EXCL)?;
    }
    Ok(())
}

fn on(device: u32) -> TcMessage {
    TcMessage::with_index(i32::try_from(device).unwrap_or(i32::MAX))
}

/// Returns the message that makes the ingress queueing discipline of a device.
fn ingress(device: u32) -> RouteNetlinkMessage {
    let mut message = on(device);
    message.header.parent = TcHandle::INGRESS;
    message.header.handle = TcHandle { major: 0xffff, minor: 0 };
    message.attributes.push(TcAttribute::Kind("ingress".to_owned()));
    RouteNetlinkMessage::NewQueueDiscipline(message)
}

/// Returns the message that makes the filter for all frames.
fn filter(from: u32, to: u32) -> RouteNetlinkMessage {
    let mut message = on(from);
    message.header.parent = TcHandle { major: 0xffff, minor: 0 };
    // Priority 1, all protocols.
    message.header.info = 1 << 16 | u32::from(ETH_P_ALL.to_be());
    message.attributes.push(TcAttribute::Kind("u32".to_owned()));
    let action = Attributes::new().nested(1, redirection(to)).emit();
    message.attributes.push(TcAttribute::Options(vec![
        TcOption::U32(TcFilterU32Option::Selector(everything())),
        TcOption::Other(DefaultNla::new(TCA_U32_ACT | NLA_F_NESTED, action)),
    ]));
    RouteNetlinkMessage::NewTrafficFilter(message)
}

/// Returns a selector with one key whose mask is empty.
fn everything() -> TcU32Selector {
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.nkeys = 1;
    selector.keys = vec![TcU32Key::default()];
    selector
}

/// Returns the action of the filter: `struct tc_mirred`.
fn redirection(to: u32) -> Attributes {
    let words = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_INGRESS_REDIR, to];
    let parameters = words.map(u32::to_ne_bytes).concat();
    let options = Attributes::new().bytes(TCA_MIRRED_PARMS, &parameters);
    Attributes::new().text(TCA_ACT_KIND, "mirred").nested(TCA_ACT_OPTIONS, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{Message, same};

    #[test]
    fn the_discipline_and_the_filter_are_these_bytes() {
        same(
            &[Message::of(&ingress(3), 0), Message::of(&filter(3, 9), 0)],
            &[
                (0x24, 0x0, "00000000030000000000fffff1ffffff000000000c000100696e677265737300"),
                (
                    0x2c,
                    0x0,
                    "0000000003000000000000000000ffff0003010008000100753332006000020024000500\
             010001000000000000000000000000000000000000000000000000000000000038000780\
             340001800b0001006d697272656400002400028020000200000000000000000004000000\
             00000000000000000300000009000000",
                ),
            ],
        );
    }
}
