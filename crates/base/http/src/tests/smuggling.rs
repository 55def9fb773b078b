//! One test for each known way to make two parties disagree about the end of a request, its
//! destination or its content.

use super::{HeadError, Method, request, response};

/// One test for each `name: "bytes of a request" => the error;`.
macro_rules! refused {
    ($($name:ident: $text:literal => $error:ident $status:literal;)*) => {$(
        #[test]
        fn $name() {
            let error = request($text).expect_err("the head is refused");
            assert_eq!((error, error.status()), (HeadError::$error, $status));
        }
    )*};
}

refused! {
    // Content-Length.
    two_conflicting_lengths:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"
        => DuplicateContentLength 400;
    two_equal_lengths:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\ncontent-length: 5\r\n\r\n"
        => DuplicateContentLength 400;
    a_list_of_equal_lengths:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n" => BadContentLength 400;
    a_length_with_a_plus_sign:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n" => BadContentLength 400;
    a_negative_length:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n" => BadContentLength 400;
    a_length_with_a_space_inside:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5 0\r\n\r\n" => BadContentLength 400;
    a_length_in_hexadecimal:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\n" => BadContentLength 400;
    a_length_with_a_fraction:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5.0\r\n\r\n" => BadContentLength 400;
    an_empty_length:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n" => BadContentLength 400;
    a_length_that_overflows_64_bits:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n"
        => BadContentLength 400;
    a_length_padded_with_zeros_beyond_any_number:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 00000000000000000005\r\n\r\n"
        => BadContentLength 400;
    a_length_with_a_no_break_space:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\xa0\r\n\r\n" => BadContentLength 400;

    // Transfer-Encoding.
    te_and_cl:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
        => LengthAndTransferEncoding 400;
    cl_and_te:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        => LengthAndTransferEncoding 400;
    te_identity:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n"
        => BadTransferEncoding 400;
    te_identity_and_cl:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: identity\r\n\r\n"
        => LengthAndTransferEncoding 400;
    te_chunked_not_last:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n"
        => BadTransferEncoding 400;
    te_chunked_twice:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n"
        => BadTransferEncoding 400;
    te_chunked_in_two_lines:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n"
        => BadTransferEncoding 400;
    te_gzip_then_chunked:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
        => UnsupportedTransferEncoding 501;
    te_gzip_alone:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"
        => BadTransferEncoding 400;
    te_xchunked:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n"
        => BadTransferEncoding 400;
    te_chunked_with_a_parameter:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n"
        => BadTransferEncoding 400;
    te_chunked_quoted:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n"
        => BadTransferEncoding 400;
    te_with_an_empty_element:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n"
        => BadTransferEncoding 400;
    te_empty:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n" => BadTransferEncoding 400;
    te_behind_a_vertical_tab:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n"
        => BadHeaderValue 400;
    te_behind_a_high_byte:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x85chunked\r\n\r\n"
        => BadTransferEncoding 400;
    te_cut_by_nul:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\x00\r\n\r\n"
        => BadHeaderValue 400;
    te_on_http10:
        b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        => TransferEncodingOnHttp10 400;
    te_on_http10_with_keep_alive:
        b"POST / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
        => TransferEncodingOnHttp10 400;

    // Names.
    space_before_the_colon:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n" => SpaceBeforeColon 400;
    tab_before_the_colon:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length\t: 5\r\n\r\n" => SpaceBeforeColon 400;
    space_before_the_first_name:
        b"POST / HTTP/1.1\r\n Host: a\r\n\r\n" => ObsFold 400;
    vertical_tab_in_a_name:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\x0b: chunked\r\n\r\n" => BadHeaderName 400;
    nul_in_a_name:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-\x00Length: 5\r\n\r\n" => BadHeaderName 400;
    high_byte_in_a_name:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent\xadLength: 5\r\n\r\n" => BadHeaderName 400;
    empty_name:
        b"POST / HTTP/1.1\r\nHost: a\r\n: 5\r\n\r\n" => BadHeaderName 400;
    line_without_a_colon:
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length\r\n\r\n" => BadHeaderName 400;

    // Line ends.
    folded_header:
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n" => ObsFold 400;
    folded_with_a_tab:
        b"POST / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tContent-Length: 5\r\n\r\n" => ObsFold 400;
    bare_lf_behind_the_request_line:
        b"GET / HTTP/1.1\nHost: a\r\n\r\n" => BareLf 400;
    bare_lf_behind_a_header:
        b"GET / HTTP/1.1\r\nHost: a\nContent-Length: 5\r\n\r\n" => BareLf 400;
    bare_lf_as_the_blank_line:
        b"GET / HTTP/1.1\r\nHost: a\r\n\n" => BareLf 400;
    bare_lf_in_an_incomplete_head:
        b"GET / HTTP/1.1\n" => BareLf 400;
    bare_cr_in_a_value:
        b"GET / HTTP/1.1\r\nHost: a\r\nX: y\rContent-Length: 5\r\n\r\n" => BareCr 400;
    bare_cr_before_crlf:
        b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\r\n\r\n" => BareCr 400;
    bare_cr_in_the_request_line:
        b"GET /\rX HTTP/1.1\r\nHost: a\r\n\r\n" => BareCr 400;
    bare_cr_behind_the_version:
        b"GET / HTTP/1.1\r\r\nHost: a\r\n\r\n" => BareCr 400;
    nul_in_a_value:
        b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n" => BadHeaderValue 400;
    delete_in_a_value:
        b"GET / HTTP/1.1\r\nHost: a\r\nX: \x7f\r\n\r\n" => BadHeaderValue 400;

    // Host.
    no_host:
        b"GET / HTTP/1.1\r\nX: y\r\n\r\n" => MissingHost 400;
    no_headers_at_all:
        b"GET / HTTP/1.1\r\n\r\n" => MissingHost 400;
    two_hosts:
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" => DuplicateHost 400;
    two_equal_hosts:
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n" => DuplicateHost 400;
    two_hosts_on_http10:
        b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n" => DuplicateHost 400;
    empty_host:
        b"GET / HTTP/1.1\r\nHost:\r\n\r\n" => BadHost 400;
    host_with_user_information:
        b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n" => BadHost 400;
    host_with_a_path:
        b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n" => BadHost 400;
    host_list:
        b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n" => BadHost 400;
    host_with_a_bad_port:
        b"GET / HTTP/1.1\r\nHost: a:80x\r\n\r\n" => BadHost 400;
    host_other_than_the_target_names:
        b"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n" => HostMismatch 400;
    absolute_target_without_host:
        b"GET http://a/ HTTP/1.1\r\n\r\n" => MissingHost 400;
    absolute_target_with_user_information:
        b"GET http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n" => BadHost 400;

    // The request line.
    two_spaces_before_the_target:
        b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    two_spaces_behind_the_target:
        b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    space_in_the_target:
        b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    a_request_line_in_the_target:
        b"GET / HTTP/1.1 GET /admin HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    tab_for_space:
        b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n" => BadMethod 400;
    space_behind_the_version:
        b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n" => BadRequestLine 400;
    http09:
        b"GET /\r\n\r\n" => BadRequestLine 400;
    a_method_only:
        b"GET\r\n\r\n" => BadRequestLine 400;
    lower_case_protocol:
        b"GET / http/1.1\r\nHost: a\r\n\r\n" => BadRequestLine 400;
    http12:
        b"GET / HTTP/1.2\r\nHost: a\r\n\r\n" => UnsupportedVersion 505;
    http2_preface:
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" => UnsupportedVersion 505;
    http2_version:
        b"GET / HTTP/2.0\r\nHost: a\r\n\r\n" => UnsupportedVersion 505;
    three_digit_version:
        b"GET / HTTP/1.10\r\nHost: a\r\n\r\n" => BadRequestLine 400;
    tls_on_a_plain_port:
        b"\x16\x03\x01" => BadMethod 400;
    method_with_a_colon:
        b"GET: / HTTP/1.1\r\nHost: a\r\n\r\n" => BadMethod 400;
    method_without_end:
        b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA / HTTP/1.1\r\nHost: a\r\n\r\n" => MethodTooLong 501;
    fragment_in_the_target:
        b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    high_byte_in_the_target:
        b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    nul_in_the_target:
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    relative_target:
        b"GET a/b HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    other_scheme:
        b"GET file:///etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    absolute_target_with_query_only:
        b"GET http://a?b HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    star_for_another_method:
        b"GET * HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    connect_without_a_port:
        b"CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;
    connect_with_a_path:
        b"CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n" => BadTarget 400;

    // Connection.
    connection_that_is_no_list_of_tokens:
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close keep-alive\r\n\r\n" => BadConnection 400;
}

/// The same for responses: a server, or an attacker that controls its output, must not
/// desynchronise the connection either.
macro_rules! refused_response {
    ($($name:ident: $text:literal => $error:ident;)*) => {$(
        #[test]
        fn $name() {
            assert_eq!(response($text, Method::Get).expect_err("refused"), HeadError::$error);
        }
    )*};
}

refused_response! {
    response_te_and_cl:
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
        => LengthAndTransferEncoding;
    response_two_lengths:
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"
        => DuplicateContentLength;
    response_te_gzip:
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
        => UnsupportedTransferEncoding;
    response_te_on_http10:
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" => TransferEncodingOnHttp10;
    response_bare_lf: b"HTTP/1.1 200 OK\nContent-Length: 5\r\n\r\n" => BareLf;
    response_bare_cr: b"HTTP/1.1 200 O\rK\r\n\r\n" => BareCr;
    response_folded: b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n" => ObsFold;
    response_space_before_colon: b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n" => SpaceBeforeColon;
    response_split_by_a_header: b"HTTP/1.1 200 OK\r\nX: y\r\n\nHTTP/1.1 200 OK\r\n\r\n" => BareLf;
}
