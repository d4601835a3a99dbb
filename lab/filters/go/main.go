// Stream module written with the public Go SDK, unchanged.
package main

import (
	"fmt"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

func main() {}

func init() {
	proxywasm.SetVMContext(&vmContext{})
}

type vmContext struct {
	types.DefaultVMContext
}

func (*vmContext) NewPluginContext(uint32) types.PluginContext {
	return &rootContext{}
}

type rootContext struct {
	types.DefaultPluginContext
	configuration string
	requests      proxywasm.MetricCounter
}

func (root *rootContext) OnPluginStart(int) types.OnPluginStartStatus {
	configuration, err := proxywasm.GetPluginConfiguration()
	if err != nil {
		proxywasm.LogCritical(err.Error())
		return types.OnPluginStartStatusFailed
	}
	root.configuration = string(configuration)
	root.requests = proxywasm.DefineCounterMetric("requests")
	return types.OnPluginStartStatusOK
}

func (root *rootContext) NewHttpContext(id uint32) types.HttpContext {
	return &httpContext{id: id, root: root}
}

type httpContext struct {
	types.DefaultHttpContext
	id   uint32
	root *rootContext
}

func (context *httpContext) OnHttpRequestHeaders(count int, _ bool) types.Action {
	context.root.requests.Increment(1)
	path, _ := proxywasm.GetHttpRequestHeader(":path")
	proxywasm.LogInfof("#%d %s, %d headers, %s", context.id, path, count, context.root.configuration)
	switch path {
	case "/panic":
		panic("as was asked for")
	case "/ask":
		headers := [][2]string{{":method", "GET"}, {":path", "/"}, {":authority", ""}}
		_, err := proxywasm.DispatchHttpCall("authority", headers, nil, nil, 500, context.answered)
		if err != nil {
			panic(err)
		}
		return types.ActionPause
	}
	if err := proxywasm.AddHttpRequestHeader("x-added", "go"); err != nil {
		panic(err)
	}
	return types.ActionContinue
}

func (context *httpContext) answered(_, size, _ int) {
	body, _ := proxywasm.GetHttpCallResponseBody(0, size)
	if err := proxywasm.ReplaceHttpRequestHeader("x-answer", string(body)); err != nil {
		panic(err)
	}
	if err := proxywasm.ResumeHttpRequest(); err != nil {
		panic(err)
	}
}

func (context *httpContext) OnHttpResponseHeaders(int, bool) types.Action {
	if err := proxywasm.AddHttpResponseHeader("x-seen-by", "go"); err != nil {
		panic(err)
	}
	return types.ActionContinue
}

func (context *httpContext) OnHttpResponseBody(size int, endOfStream bool) types.Action {
	if !endOfStream {
		return types.ActionPause
	}
	body, err := proxywasm.GetHttpResponseBody(0, size)
	if err != nil {
		panic(err)
	}
	if err := proxywasm.ReplaceHttpResponseBody([]byte(fmt.Sprintf("[%s]", body))); err != nil {
		panic(err)
	}
	return types.ActionContinue
}

func (context *httpContext) OnHttpStreamDone() {
	proxywasm.LogInfof("#%d done", context.id)
}
