// Puts ComfyUI's own audio player on LiveVoice Streaming Preview.
//
// A frontend adds its player to core nodes by name only. Any other node gets one by having an input
// of the type that the player's widget is registered for; it is filled from the node's ui.audio and
// is not part of the prompt.
import { app } from "../../scripts/app.js";

const NODE = "LiveVoiceStreamingPreview";
const PLAYER = "AUDIO_UI";

app.registerExtension({
    name: "LiveVoice.Preview",
    beforeRegisterNodeDef(_nodeType, nodeData) {
        const required = nodeData?.input?.required;
        if (nodeData?.name !== NODE || !required) return;
        // Without that widget (old frontends) the input would show as a socket.
        if (app.widgets && !(PLAYER in app.widgets)) return;
        required.audioUI = [PLAYER, {}];
    },
});
