/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The translation of connections at a balancer.
 *
 *   link ingress: of a client ──► for its socket, and for the server: an acknowledgement
 *                 of a server ──► for its socket, or for the client: bytes of a splice that the
 *                                 server's host has not sent there
 *   link egress:  of a socket ──► for its peer
 *   control:      begin and end of a splice, by the balancer's process
 *
 * All is unchanged for connections without a slot, and for a slot whose connection was never in a splice.
 * The decisions are those of splice.h. One lock guards all slots of a worker of the balancer: a splice joins
 * two slots, and a program can hold only one lock.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>

#include "checksum.h"
#include "cut.h"
#include "piece.h"
#include "response_head.h"
#include "splice_packet.h"
#include "splice_socket.h"

/* Marks packets of these programs, so that they pass the link's egress unchanged. */
#define MARK 0x756e6c64
#define NONE 0xffffffff
#define NS_PER_MS 1000000

struct splice_lock {
	struct bpf_spin_lock lock;
};

#define LOCKS_MAX 256
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOCKS_MAX);
	__type(key, __u32);
	__type(value, struct splice_lock);
} splice_locks SEC(".maps");

/* A connection, in memory shared with user space, which writes `key` and `lock` before the slot is
 * found. Remote host first in `key`. */
struct splice_head {
	struct flow_key key;
	__u32 lock;
	__u32 is_open;
	__u32 peer;    /* slot of the other connection of the splice; NONE */
	__u32 ifindex; /* of the newest packet of the remote host; 0: none came */
	__u8 mac[12];  /* addresses of a frame to it */
	__u32 reserved;
};

struct splice_client_slot {
	struct splice_head head;
	struct splice_client flow;
	struct splice_state splice;
	__u64 head_ns; /* time of the splice's head */
	__u64 end_ns;  /* time of the acknowledgement of its last byte */
	__u64 sent_ns; /* time of the client's newest segment with bytes */
};

/* Outcomes of a wish. */
enum wish_state {
	WISH_NONE,
	WISH_MADE,
	WISH_BEGUN,
	WISH_UNFIT, /* plus enum splice_unfit; SPLICE_FIT: a connection is closed */
};

/* A splice that is to begin with the next HTTP request. The process writes it, `state` last. */
struct splice_wish {
	__u32 state;
	__u32 client; /* slot */
	__u32 request_bytes;
	__u32 expected_bytes;
	__u32 is_sealed; /* the response has a header of piece.h in place of a head */
	__u32 reserved;
};

struct splice_server_slot {
	struct splice_head head;
	struct splice_server flow;
	struct splice_wish wish;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, __u32); /* a slot, twice its number; odd: of a server */
} splice_flows SEC(".maps");

/* Number of the connections in `splice_flows` by the exclusive or of their ports, in packet order: most
 * packets of a balancer are of other connections. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} splice_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct splice_client_slot);
} splice_clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct splice_server_slot);
} splice_servers SEC(".maps");

/* Packets and requests do not share memory: a packet can interrupt a request, and so can a request of
 * another worker where the kernel preempts. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct splice_work);
} splice_works SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOCKS_MAX);
	__type(key, __u32);
	__type(value, struct splice_work);
} splice_request_works SEC(".maps");

/* Order as in src/splice.rs. */
enum splice_count {
	SPLICE_ACKS,     /* sent to servers */
	SPLICE_DROPPED,  /* segments that a socket must not see */
	SPLICE_REFUSED,  /* segments of clients that a TCP would refuse */
	SPLICE_CORRUPT,  /* wrong checksums */
	SPLICE_UNSENT,   /* acknowledgements that could not be sent */
	SPLICE_CLOSED,   /* splices that ended with the client's last acknowledgement */
	SPLICE_FORWARDED, /* segments of servers that were sent to clients */
	SPLICE_COUNTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SPLICE_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} splice_counts SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&splice_counts, &what);

	if (counter)
		(*counter)++;
}

static __always_inline __u64 time_ms(void)
{
	return bpf_ktime_get_ns() / NS_PER_MS;
}

static __always_inline struct splice_work *packet_work(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&splice_works, &only);
}

/* A segment without payload, whose header was read. */
static __always_inline int is_intact_header(struct __sk_buff *skb, struct segment *packet,
					    const struct splice_work *work)
{
	__u32 pseudo;

	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return 1;
	pseudo = fold(pseudo_header(packet));
	return is_pending(packet, pseudo) ||
	       fold(bpf_csum_diff(0, 0, (__be32 *)work->original, HEADER_BUFFER, pseudo)) == 0xffff;
}

static __always_inline int is_intact(struct __sk_buff *skb, struct segment *packet,
				     const struct splice_work *work)
{
	return packet->payload ? is_intact_skb(skb, packet) : is_intact_header(skb, packet, work);
}

/* Notes where the remote host's packets come from. */
static __always_inline void learn(struct __sk_buff *skb, struct splice_head *head)
{
	const struct ethhdr *eth = (void *)(long)skb->data;

	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return;
	__builtin_memcpy(head->mac, eth->h_source, 6);
	__builtin_memcpy(head->mac + 6, eth->h_dest, 6);
	head->ifindex = skb->ifindex;
}

/* Addresses as in a packet of this host to the remote one. */
static __always_inline void addresses_to(const struct flow_key *key, __u8 *to)
{
	__builtin_memcpy(to, key->service, 16);
	__builtin_memcpy(to + 16, key->client, 16);
}

/* Makes the packet a segment for the slot's remote host: the acknowledgement, or the segment. */
static __always_inline int write_to(struct __sk_buff *skb, struct segment *packet,
				    struct splice_work *work, int is_ack,
				    const struct splice_head *to)
{
	__u8 addresses[32];

	addresses_to(&to->key, addresses);
	compose(work, is_ack, to->key.service_port, to->key.client_port);
	return bpf_skb_store_bytes(skb, 0, to->mac, sizeof(to->mac), 0) ||
	       readdress(skb, packet->at, packet->key.family, packet->key.client, addresses) ||
	       write_header(skb, packet->at, work);
}

/* Makes it the segment for the socket again. */
static __always_inline int restore(struct __sk_buff *skb, struct segment *packet,
				   struct splice_work *work, const struct splice_head *from,
				   const struct splice_head *was)
{
	__u8 addresses[32], mac[12];

	addresses_to(&was->key, addresses);
	__builtin_memcpy(mac, from->mac + 6, 6);
	__builtin_memcpy(mac + 6, from->mac, 6);
	/* The frame's destination is first. */
	return bpf_skb_store_bytes(skb, 0, mac, sizeof(mac), 0) ||
	       readdress(skb, packet->at, packet->key.family, addresses, packet->key.client);
}

/* A segment for the socket or the peer, if it has changed. */
static __always_inline int pass(struct __sk_buff *skb, struct segment *packet,
				struct splice_work *work)
{
	compose(work, 0, packet->key.client_port, packet->key.service_port);
	if (is_unchanged(work))
		return NEXT;
	return write_header(skb, packet->at, work) ? SHOT : NEXT;
}

static __always_inline int is_opening(const struct splice_segment *segment)
{
	return (segment->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

static __always_inline int from_client(struct __sk_buff *skb, struct segment *packet,
				       struct splice_work *work, __u32 index)
{
	struct splice_client_slot *slot = bpf_map_lookup_elem(&splice_clients, &index);
	struct splice_server_slot *server = 0;
	struct splice_lock *lock;
	__u32 peer, number;
	__u64 now_ns = bpf_ktime_get_ns(), now_ms = now_ns / NS_PER_MS;
	int ways = SPLICE_TO_SOCKET, is_lost = 1, is_over = 0, is_another;

	if (!slot || !slot->head.is_open)
		return NEXT;
	if (!is_intact(skb, packet, work)) {
		count(SPLICE_CORRUPT);
		return NEXT; /* the socket drops it */
	}
	number = slot->head.lock;
	lock = bpf_map_lookup_elem(&splice_locks, &number);
	if (!lock)
		return NEXT;
	if (packet->payload)
		slot->sent_ns = now_ns;
	/* The slot of a connection that has ended lingers, for less time than this one may last. */
	is_another = is_opening(&work->segment) && !has_socket(skb, &slot->head.key);
	/* Nothing can be looked up under a lock, so a splice may begin in between. */
	for (int i = 0; i < 2 && is_lost; i++) {
		peer = *(volatile __u32 *)&slot->head.peer;
		server = bpf_map_lookup_elem(&splice_servers, &peer);
		bpf_spin_lock(&lock->lock);
		if (!slot->splice.is_active) {
			if (is_another)
				client_renew(&slot->flow);
			ways = client_receive(&slot->flow, &work->segment);
			is_lost = 0;
		} else if (server && slot->head.peer == peer) {
			/* The process reads it behind `is_complete`. */
			if (!slot->splice.is_complete)
				slot->end_ns = now_ns;
			ways = splice_receive_from_client(&slot->flow, &server->flow,
							  &slot->splice, &work->segment,
							  &work->ack, now_ms);
			/* The acknowledgement for the server is made already. */
			is_over = splice_end_if_over(&slot->flow, &server->flow, &slot->splice,
						     &work->ack, now_ms);
			if (is_over) {
				slot->head.peer = NONE;
				server->head.peer = NONE;
			}
			is_lost = 0;
		}
		bpf_spin_unlock(&lock->lock);
	}
	learn(skb, &slot->head);
	if (is_over)
		count(SPLICE_CLOSED);
	if (is_lost || !ways) {
		count(is_lost ? SPLICE_DROPPED : SPLICE_REFUSED);
		return SHOT;
	}
	if (ways == SPLICE_KEPT)
		return SHOT;
	if (ways == SPLICE_TO_CLIENT) {
		if (write_to(skb, packet, work, 0, &slot->head))
			return SHOT;
		skb->mark = MARK;
		return bpf_redirect(slot->head.ifindex, 0);
	}
	if (!(ways & SPLICE_TO_SERVER) || !server)
		return pass(skb, packet, work);
	__u32 ifindex = server->head.ifindex;

	if (write_to(skb, packet, work, 1, &server->head))
		return SHOT;
	count(SPLICE_ACKS);
	skb->mark = MARK;
	if (!(ways & SPLICE_TO_SOCKET))
		return bpf_redirect(ifindex, 0);
	/* The clone shares the bytes until they are written. */
	if (bpf_clone_redirect(skb, ifindex, 0))
		count(SPLICE_UNSENT);
	skb->mark = 0;
	if (restore(skb, packet, work, &slot->head, &server->head))
		return SHOT;
	compose(work, 0, packet->key.client_port, packet->key.service_port);
	return write_header(skb, packet->at, work) ? SHOT : NEXT;
}

/* Reads the head at the start of a segment. Returns 0 if it is not fit. */
static __always_inline int read_head(struct __sk_buff *skb, const struct segment *packet,
				     struct splice_fit *fit)
{
	__u32 only = 0, count = packet->payload, at = packet->at + packet->bytes - count;
	struct head_work *head = bpf_map_lookup_elem(&head_works, &only);

	if (!head || !count)
		return 0;
	if (count > HEAD_BYTES_MAX)
		count = HEAD_BYTES_MAX;
	if (bpf_skb_load_bytes(skb, at, head->bytes, count) || !is_fit(head, count))
		return 0;
	fit->head_bytes = head->head_bytes;
	fit->response_bytes = head->head_bytes + head->body_bytes;
	fit->status = head->bytes[11] == '6' ? 206 : 200;
	return 1;
}

/* Gives the socket the acknowledgement `work->ack` in place of the segment with a head. `is_partial`: the
 * segment's checksum was. */
static __always_inline int pass_ack(struct __sk_buff *skb, struct segment *packet,
				    struct splice_work *work, int is_partial)
{
	__u32 pseudo;
	__u16 check = 0;

	compose(work, 1, packet->key.client_port, packet->key.service_port);
	if (write_header(skb, packet->at, work) || shorten_payload(skb, packet, 0))
		return SHOT;
	pseudo = fold(pseudo_header(packet));
	if (is_partial) {
		check = pseudo;
		return bpf_skb_store_bytes(skb, packet->at + 16, &check, sizeof(check), 0) ? SHOT : NEXT;
	}
	if (bpf_skb_store_bytes(skb, packet->at + 16, &check, sizeof(check), BPF_F_RECOMPUTE_CSUM))
		return SHOT;
	check = ~skb_sum(skb, packet->at, packet->bytes, pseudo);
	return bpf_skb_store_bytes(skb, packet->at + 16, &check, sizeof(check), BPF_F_RECOMPUTE_CSUM) ?
		       SHOT :
		       NEXT;
}

/* Sends the client the segment with a head, and gives the socket the acknowledgement in it. */
static __always_inline int send_head(struct __sk_buff *skb, struct segment *packet,
				     struct splice_work *work, const struct splice_head *server,
				     const struct splice_head *client, int is_partial)
{
	if (write_to(skb, packet, work, 0, client))
		return SHOT;
	skb->mark = MARK;
	/* A lost one is sent again: the server gets the client's acknowledgements. */
	if (bpf_clone_redirect(skb, client->ifindex, 0))
		count(SPLICE_UNSENT);
	else
		count(SPLICE_FORWARDED);
	skb->mark = 0;
	return restore(skb, packet, work, server, client) ?
		       SHOT :
		       pass_ack(skb, packet, work, is_partial);
}

static __always_inline int from_server(struct __sk_buff *skb, struct segment *packet,
				       struct splice_work *work, __u32 index)
{
	struct splice_server_slot *slot = bpf_map_lookup_elem(&splice_servers, &index);
	struct splice_client_slot *client;
	struct splice_lock *lock;
	struct splice_fit fit = {};
	__u64 now_ns = bpf_ktime_get_ns(), now_ms = now_ns / NS_PER_MS;
	__u32 peer, number, records_bytes = 0;
	int ways = 0, is_lost = 1, has_head = 0, is_head = 0;

	if (!slot || !slot->head.is_open)
		return NEXT;
	/* A wrong checksum of a payload costs the connection at most: END finds that bytes lack. */
	if (!packet->payload && !is_intact_header(skb, packet, work)) {
		count(SPLICE_CORRUPT);
		return NEXT;
	}
	peer = *(volatile __u32 *)&slot->head.peer;
	client = bpf_map_lookup_elem(&splice_clients, &peer);
	/* That is decided under the lock. */
	if (client && packet->payload && client->splice.awaits_head &&
	    client->splice.first == work->segment.seq &&
	    (work->segment.is_copy || client->head.ifindex || client->splice.is_sealed)) {
		/* A wrong one of a head costs more: the response's length is read from it. */
		if (!is_intact_skb(skb, packet)) {
			count(SPLICE_CORRUPT);
			return NEXT;
		}
		if (client->splice.is_sealed)
			records_bytes = read_piece(skb, packet);
		else
			has_head = read_head(skb, packet, &fit);
	}
	number = slot->head.lock;
	lock = bpf_map_lookup_elem(&splice_locks, &number);
	if (!lock)
		return NEXT;
	for (int i = 0; i < 2 && is_lost; i++) {
		peer = *(volatile __u32 *)&slot->head.peer;
		client = bpf_map_lookup_elem(&splice_clients, &peer);
		bpf_spin_lock(&lock->lock);
		if (slot->head.peer == NONE) {
			ways = server_for_socket(&slot->flow, 0, &work->segment, now_ms) ?
				       SPLICE_TO_SOCKET :
				       0;
			is_lost = 0;
		} else if (client && slot->head.peer == peer) {
			ways = 0;
			if (has_head && client->splice.awaits_head) {
				client->head_ns = now_ns;
				client->end_ns = now_ns;
				ways = splice_receive_head(&client->flow, &slot->flow,
							   &client->splice, &work->segment,
							   &work->ack, &fit, now_ms);
				is_head = ways;
			} else if (records_bytes && client->splice.awaits_head) {
				client->head_ns = now_ns;
				client->end_ns = now_ns;
				ways = splice_receive_header(&client->flow, &slot->flow,
							     &client->splice, &work->segment,
							     records_bytes, now_ms);
			}
			if (!ways)
				ways = splice_receive_from_server(&client->flow, &slot->flow,
								  &client->splice,
								  &work->segment, now_ms);
			is_lost = 0;
		}
		bpf_spin_unlock(&lock->lock);
	}
	learn(skb, &slot->head);
	if (is_head && client) {
		int is_partial = is_partial_skb(skb, packet);

		return is_head & SPLICE_TO_CLIENT ? send_head(skb, packet, work, &slot->head,
							      &client->head, is_partial) :
						    pass_ack(skb, packet, work, is_partial);
	}
	if (ways == SPLICE_TO_CLIENT && client) {
		/* Its host has no rule. The client's checks the payload. */
		if (write_to(skb, packet, work, 0, &client->head))
			return SHOT;
		count(SPLICE_FORWARDED);
		skb->mark = MARK;
		/* Nothing came from the client since the slot is open: the kernel knows the way. */
		if (!client->head.ifindex)
			return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
		return bpf_redirect(client->head.ifindex, 0);
	}
	if (ways == SPLICE_TO_SOCKET)
		return pass(skb, packet, work);
	count(SPLICE_DROPPED);
	return SHOT;
}

/* Returns true if no connection with a slot has the packet's ports. */
static __always_inline int is_of_others(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *v4 = (void *)(eth + 1);
	struct ipv6hdr *v6 = (void *)(eth + 1);
	const __be16 *ports;
	__u64 *connections;
	__u32 index;

	if ((void *)(v4 + 1) > end)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if (v4->ihl != 5 || v4->protocol != IPPROTO_TCP)
			return 0;
		ports = (void *)(v4 + 1);
	} else {
		if (eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(v6 + 1) > end ||
		    v6->nexthdr != IPPROTO_TCP)
			return 0;
		ports = (void *)(v6 + 1);
	}
	if ((void *)(ports + 2) > end)
		return 0;
	index = ports[0] ^ ports[1];
	connections = bpf_map_lookup_elem(&splice_ports, &index);
	return connections && !*connections;
}

SEC("classifier")
int splice_ingress(struct __sk_buff *skb)
{
	struct segment packet;
	struct splice_work *work;
	__u32 *number;

	if (is_of_others(skb))
		return NEXT;
	if (parsed(skb, &packet) != PACKET_WHOLE)
		return NEXT;
	number = bpf_map_lookup_elem(&splice_flows, &packet.key);
	if (!number)
		return NEXT;
	work = packet_work();
	if (!work || read_segment(skb, &packet, work))
		return NEXT;
	if (*number & 1)
		return from_server(skb, &packet, work, *number >> 1);
	return from_client(skb, &packet, work, *number >> 1);
}

static __always_inline int to_client(struct __sk_buff *skb, struct segment *packet,
				     struct splice_work *work, __u32 index)
{
	struct splice_client_slot *slot = bpf_map_lookup_elem(&splice_clients, &index);
	struct splice_lock *lock;
	__u64 now_ms = time_ms();
	__u32 number;
	int goes;

	if (!slot || !slot->head.is_open)
		return NEXT;
	number = slot->head.lock;
	lock = bpf_map_lookup_elem(&splice_locks, &number);
	if (!lock)
		return NEXT;
	bpf_spin_lock(&lock->lock);
	goes = splice_send_to_client(&slot->flow, &slot->splice, &work->segment, now_ms);
	bpf_spin_unlock(&lock->lock);
	/* No device has this number: the packet ends, and unlike with SHOT, the socket takes that for no sign
	 * of congestion. */
	return goes ? pass(skb, packet, work) : bpf_redirect(0, 0);
}

#include "splice_begin.h"

static __always_inline int to_server(struct __sk_buff *skb, struct segment *packet,
				     struct splice_work *work, __u32 index)
{
	struct splice_server_slot *slot = bpf_map_lookup_elem(&splice_servers, &index);
	struct splice_client_slot *client;
	struct splice_lock *lock;
	__u64 now_ms = time_ms();
	__u32 peer, number;
	int is_lost = 1;

	if (!slot || !slot->head.is_open)
		return NEXT;
	number = slot->head.lock;
	lock = bpf_map_lookup_elem(&splice_locks, &number);
	if (!lock)
		return NEXT;
	/* New bytes, and no request is under way. */
	if (*(volatile __u32 *)&slot->wish.state == WISH_MADE && work->segment.payload_bytes &&
	    work->segment.seq == slot->flow.request_end && slot->head.peer == NONE)
		begin_with_request(skb, slot, index, work);
	work->none.is_active = 0;
	for (int i = 0; i < 2 && is_lost; i++) {
		peer = *(volatile __u32 *)&slot->head.peer;
		client = bpf_map_lookup_elem(&splice_clients, &peer);
		bpf_spin_lock(&lock->lock);
		if (slot->head.peer == NONE) {
			if (is_opening(&work->segment))
				server_renew(&slot->flow);
			splice_send_to_server(&work->nobody, &slot->flow, &work->none,
					      &work->segment, now_ms);
			is_lost = 0;
		} else if (client && slot->head.peer == peer) {
			splice_send_to_server(&client->flow, &slot->flow, &client->splice,
					      &work->segment, now_ms);
			is_lost = 0;
		}
		bpf_spin_unlock(&lock->lock);
	}
	if (is_lost) {
		count(SPLICE_DROPPED);
		return SHOT;
	}
	return pass(skb, packet, work);
}

SEC("classifier")
int splice_egress(struct __sk_buff *skb)
{
	struct segment packet;
	struct flow_key key;
	struct splice_work *work;
	__u32 *number;

	if (skb->mark == MARK) {
		skb->mark = 0;
		return NEXT;
	}
	if (is_of_others(skb))
		return NEXT;
	if (parsed(skb, &packet) != PACKET_WHOLE)
		return NEXT;
	__builtin_memcpy(key.client, packet.key.service, 16);
	__builtin_memcpy(key.service, packet.key.client, 16);
	key.client_port = packet.key.service_port;
	key.service_port = packet.key.client_port;
	key.family = packet.key.family;
	number = bpf_map_lookup_elem(&splice_flows, &key);
	if (!number)
		return NEXT;
	work = packet_work();
	if (!work || read_segment(skb, &packet, work))
		return NEXT;
	if (*number & 1)
		return to_server(skb, &packet, work, *number >> 1);
	return to_client(skb, &packet, work, *number >> 1);
}

#include "splice_control.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
