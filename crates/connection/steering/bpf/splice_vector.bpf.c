/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Runs one function of splice.h on a state and a segment behind an Ethernet header, and writes back what
 * they have become. For tests: src/splice_vectors.rs. */
#include <linux/bpf.h>
#include <linux/types.h>

#include "checksum.h"
#include "splice.h"

/* Order as in src/splice_vectors.rs. */
enum operation {
	CLIENT_RECEIVE,
	SPLICE_RECEIVE_FROM_CLIENT,
	SEND_TO_CLIENT,
	SERVER_FOR_SOCKET,
	SPLICE_RECEIVE_FROM_SERVER,
	SEND_TO_SERVER,
	OWED_ACK,
	BEGIN,
	SET_LENGTH,
	END,
	ROOM,
	EXTEND,
	GRANT_EARLY,
	END_IF_OVER,
	RECEIVE_HEAD,
	SEND_TO_CLIENT_ALONE,
	KEPT_ACK,
	RECEIVE_HEADER,
};

struct vector {
	__u32 operation;
	__u32 result;
	__u64 now_ms;
	struct splice_client client;
	struct splice_server server;
	struct splice_state splice;
	struct splice_segment segment;
	struct splice_segment ack;
	struct splice_start start;
	struct splice_rule rule;
	__u32 arguments[2];
	__u32 is_reusable;
	struct splice_fit head;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vector);
} vectors SEC(".maps");

static __always_inline void run(struct vector *v)
{
	switch (v->operation) {
	case CLIENT_RECEIVE:
		v->result = client_receive(&v->client, &v->segment);
		break;
	case SPLICE_RECEIVE_FROM_CLIENT:
		v->result = splice_receive_from_client(&v->client, &v->server, &v->splice, &v->segment,
						       &v->ack, v->now_ms) &
			    (SPLICE_TO_SOCKET | SPLICE_TO_SERVER | SPLICE_TO_CLIENT);
		break;
	case SEND_TO_CLIENT:
		v->result = splice_send_to_client(&v->client, &v->splice, &v->segment, v->now_ms);
		break;
	case SEND_TO_CLIENT_ALONE:
		v->result = splice_send_to_client(&v->client, NULL, &v->segment, v->now_ms);
		break;
	case KEPT_ACK:
		v->result = client_kept_ack(&v->client, &v->ack, v->now_ms);
		break;
	case SERVER_FOR_SOCKET:
		v->result = server_for_socket(&v->server, 0, &v->segment, v->now_ms);
		break;
	case SPLICE_RECEIVE_FROM_SERVER:
		v->result = splice_receive_from_server(&v->client, &v->server, &v->splice,
						       &v->segment, v->now_ms);
		break;
	case SEND_TO_SERVER:
		splice_send_to_server(&v->client, &v->server, &v->splice, &v->segment, v->now_ms);
		break;
	case OWED_ACK:
		v->result = splice_owed_ack(&v->client, &v->server, &v->splice, &v->ack, v->now_ms);
		break;
	case BEGIN:
		v->result = splice_begin(&v->client, &v->server, &v->start, &v->splice, &v->rule,
					 v->now_ms);
		break;
	case SET_LENGTH:
		splice_set_length(&v->client, &v->splice, v->arguments[0]);
		break;
	case EXTEND:
		server_extend(&v->server, v->arguments[1], v->arguments[0]);
		break;
	case GRANT_EARLY:
		splice_grant_early(&v->client, &v->server, &v->splice, v->arguments[0], &v->ack,
				   v->now_ms);
		break;
	case END_IF_OVER:
		v->result = splice_end_if_over(&v->client, &v->server, &v->splice, &v->ack, v->now_ms);
		break;
	case RECEIVE_HEAD:
		v->result = splice_receive_head(&v->client, &v->server, &v->splice, &v->segment,
						&v->ack, &v->head, v->now_ms);
		break;
	case RECEIVE_HEADER:
		v->result = splice_receive_header(&v->client, &v->server, &v->splice, &v->segment,
						  v->arguments[0], v->now_ms);
		break;
	case ROOM:
		server_room(&v->server, &v->ack, v->now_ms);
		break;
	case END: {
		int is_reusable = 0;

		v->result = splice_end(&v->client, &v->server, &v->splice, v->arguments[0],
				       v->arguments[1], &is_reusable, &v->ack, v->now_ms);
		v->is_reusable = is_reusable;
		break;
	}
	}
}

SEC("classifier")
int splice_vector(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct vector *v = bpf_map_lookup_elem(&vectors, &zero);

	if (!v || bpf_skb_load_bytes(skb, sizeof(struct ethhdr), v, sizeof(*v)))
		return 1;
	run(v);
	return bpf_skb_store_bytes(skb, sizeof(struct ethhdr), v, sizeof(*v), 0) ? 1 : 0;
}

/* Returns 1 for a segment with a partial checksum. */
SEC("classifier")
int partial_vector(struct __sk_buff *skb)
{
	struct segment segment;

	return parsed(skb, &segment) == PACKET_WHOLE ? is_partial_skb(skb, &segment) : 2;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
