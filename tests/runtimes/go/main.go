// A function with AWS's own runtime interface client and SDK. Without a Runtime API it does its
// work once, and prints the result: that is the comparison.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

type event struct {
	Bucket string `json:"bucket"`
	Fail   string `json:"fail"`
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return fmt.Sprint(err)
}

func handle(ctx context.Context, e event) (map[string]any, error) {
	if e.Fail != "" {
		return nil, errors.New(e.Fail)
	}
	loaded, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, err
	}
	// The usual style of an address that is a name and not an IP address would be the other one.
	client := s3.NewFromConfig(loaded, func(o *s3.Options) { o.UsePathStyle = true })
	bucket, out := aws.String(e.Bucket), map[string]any{}
	small := []byte(strings.Repeat("small ", 1000))
	if _, err = client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: bucket, Key: aws.String("a b/ü+%"), Body: bytes.NewReader(small),
		ContentType: aws.String("text/plain"), Metadata: map[string]string{"who": "me"},
	}); err != nil {
		return nil, err
	}
	got, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: aws.String("a b/ü+%")})
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(got.Body)
	if err != nil {
		return nil, err
	}
	out["get"] = []any{digest(body), aws.ToString(got.ContentType), got.Metadata["who"], aws.ToString(got.ETag)}
	part, err := client.GetObject(ctx, &s3.GetObjectInput{
		Bucket: bucket, Key: aws.String("a b/ü+%"), Range: aws.String("bytes=3-9")})
	if err != nil {
		return nil, err
	}
	body, _ = io.ReadAll(part.Body)
	out["range"] = []any{string(body), aws.ToString(part.ContentRange)}
	large := bytes.Repeat([]byte("0123456789abcdef"), 13<<16)
	if _, err = manager.NewUploader(client).Upload(ctx, &s3.PutObjectInput{
		Bucket: bucket, Key: aws.String("large"), Body: bytes.NewReader(large),
	}); err != nil {
		return nil, err
	}
	head, err := client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: bucket, Key: aws.String("large")})
	if err != nil {
		return nil, err
	}
	out["head"] = aws.ToInt64(head.ContentLength)
	read := manager.NewWriteAtBuffer(nil)
	if _, err = manager.NewDownloader(client).Download(ctx, read, &s3.GetObjectInput{
		Bucket: bucket, Key: aws.String("large")}); err != nil {
		return nil, err
	}
	out["large"] = digest(read.Bytes())
	if _, err = client.CopyObject(ctx, &s3.CopyObjectInput{
		Bucket: bucket, Key: aws.String("copy"), CopySource: aws.String(e.Bucket + "/large")}); err != nil {
		return nil, err
	}
	list, err := client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: bucket})
	if err != nil {
		return nil, err
	}
	keys := []any{}
	for _, object := range list.Contents {
		keys = append(keys, []any{aws.ToString(object.Key), aws.ToInt64(object.Size)})
	}
	out["list"] = keys
	_, err = client.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: aws.String("none")})
	out["missing"] = code(err)
	_, err = client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: bucket, Key: aws.String("none")})
	out["absent"] = code(err)
	deleted, err := client.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: bucket,
		Delete: &types.Delete{Objects: []types.ObjectIdentifier{
			{Key: aws.String("copy")}, {Key: aws.String("large")}}}})
	if err != nil {
		return nil, err
	}
	out["deleted"] = len(deleted.Deleted)
	return out, nil
}

func main() {
	if os.Getenv("AWS_LAMBDA_RUNTIME_API") != "" {
		lambda.Start(handle)
	}
	out, err := handle(context.Background(), event{Bucket: os.Args[1]})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	text, _ := json.Marshal(out)
	fmt.Println(string(text))
}
